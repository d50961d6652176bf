"""The road of one request, top to bottom. All that is known of it is in its `scope`.

``admit``           the tokenizer manager takes the request: placeholders without media, text beside ids
``disaggregation``  or a request that waits for an encoder receives its embeddings
``begin``           the processor's outermost method: check ids and media, open the scope
``media``           what came as images and videos, checked before anything is loaded
``load``            images and videos are loaded; the loader gets placeholders in place of the ids
``combine``         the HF processor runs; its re-tokenized ids give way to the caller's
``verify``          the last look: ids, offsets and positions follow from what the caller sent

``scope``           the state of a request, and how it travels to a worker thread
``grids``           (t, h, w) of images and videos, in whatever form they come
``frames``          the frames of a video, and their times
``media_errors``    whether an exception of SGLang's goes back to an image or video that cannot be read
``unserved``        requests to classes that handle ids by themselves
"""
