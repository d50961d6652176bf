"""Pure functions on token ids, without torch and without SGLang.

``tokens``        the special ids: placeholders, vision_start, vision_end
``reading``       the caller's ids, into an array and a list
``spans``         where the placeholders are, and how many there should be
``request``       a request's ids, matched with the grids of its media
``audio``         spans of audio placeholders, and how long they should be
``video_blocks``  the ids that the HF processor makes of a video, and where they stand in the caller's ids
``video_times``   the times of a video's frames
``positions``     M-RoPE positions, by definition
"""
