from episode import FORBIDDEN, IMAGE, Episode, observation, user_turn

# All of them: what is missing may come from the server's own defaults.
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "max_new_tokens": 512}
SAMPLING["logit_bias"] = {str(token): -100.0 for token in FORBIDDEN}


def zoom(picture):
    """Your tool. This one always enlarges the middle."""
    width, height = picture.size
    return picture.resize(picture.size, box=(width / 4, height / 4, width * 3 / 4, height * 3 / 4))


def play(generate, picture, question, turns=2):
    """`generate(ids, images)` asks SGLang, in whatever way, and returns its answer."""
    episode = Episode()
    episode.see(user_turn(IMAGE + question), [picture])
    for turn in range(1, turns + 1):
        answer = episode.say(generate(episode.ids, episode.images))
        if turn < turns:
            episode.see(observation(IMAGE + "The middle, enlarged.", answer), [zoom(picture)])
    return episode
