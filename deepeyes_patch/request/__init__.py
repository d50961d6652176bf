"""The path of one request through our wrappers, in order. Its `scope` holds all that is known of the request.

``cleanup``         around all of it, in the tokenizer manager: a refused request leaves nothing there
``admit``           the tokenizer manager takes it: refuse placeholders without media, and text beside ids; at
                    the end, no result leaves without a last look
``disaggregation``  with encoder disaggregation: the request receives its embeddings
``encoded``         what it received: the caller's ids are matched with the encoder's grids and times
``begin``           the processor's outermost method: check ids and media, open the scope
``media``           check the images and videos, before SGLang loads anything
``audio``           check the audio
``load``            images and videos are loaded; the loader gets placeholders in place of the ids
``channels``        the slow HF processor is told where an image has its channels
``combine``         the HF processor runs; the caller's ids replace its re-tokenized ids
``verify``          the last look: ids, offsets and positions must follow from what the caller sent
``sampling``        with the switch ``sampling``: the model can sample no placeholder
``handover``        the request goes to the scheduler: each of its samples gets its images

A path of its own, past the processor:

``over_grpc``       the gRPC server takes preprocessed images: check them against the ids, add positions

Beside the path, most of it in the scheduler:

``features``         vision features that SGLang keeps are dropped when the weights change
``hashes``           the hash of an image, by which caches know it, depends on its grid
``sessions``         each turn of a session has the positions of its whole prompt
``prompt_logprobs``  log-probs of the prompt are those of the placeholders, not of what SGLang pads them with

For all of them:

``scope``           the state of a request, and how it travels to a worker thread
``grids``           (t, h, w) of images and videos, read from tensors, arrays and lists
``frames``          the frames of a video, and their times
``item_checks``     what preprocessed items hold
``preprocessed``    images and videos that the caller's HF processor, or an encoder, has worked on
``media_errors``    whether an unreadable image or video caused an exception of SGLang
``unserved``        requests to classes that handle ids by themselves
"""
