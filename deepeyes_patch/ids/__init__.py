"""Pure functions on token ids, without torch and without SGLang.

``tokens``        the ids with a meaning: placeholders, vision_start, vision_end
``spans``         where the placeholders are, and how many there should be
``request``       a request's ids, and what they become beside the grids of its images and videos
``video_blocks``  the ids that the HF processor makes of a video, and where a caller's ids hold them
``video_times``   when the frames of a video are
``positions``     M-RoPE positions, by definition
"""
