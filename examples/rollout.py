from episode import IMAGE, PAD, VIDEO_PAD, Episode, observation, user_turn

# All of them: what is missing may come from the server's own defaults.
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "max_new_tokens": 512}
SAMPLING["stop_token_ids"] = [PAD, VIDEO_PAD]


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
        # A sampled pad stands for an image that is not there, so nothing can follow it.
        if turn == turns or answer[-1] in (PAD, VIDEO_PAD):
            break
        episode.see(observation(IMAGE + "The middle, enlarged.", answer), [zoom(picture)])
    return episode
