import base64, io, sys, requests
from PIL import Image

file = io.BytesIO()
Image.new("RGB", (448, 224), (90, 160, 30)).save(file, "PNG")
text = "<|vision_start|><|image_pad|><|vision_end|>Describe."
body = {"text": text, "image_data": [base64.b64encode(file.getvalue()).decode()]}
more = {"return_logprob": True, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 1}}
answer = requests.post(sys.argv[1], json={**body, **more}, timeout=60)  # http://127.0.0.1:30000/generate
print([row[1] for row in answer.json()["meta_info"]["input_token_logprobs"]])  # 0 for every image token
