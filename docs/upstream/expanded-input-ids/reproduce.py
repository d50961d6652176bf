import base64, io, sys, requests, transformers
from PIL import Image

model, url = sys.argv[1], sys.argv[2]  # Qwen/Qwen3-VL-2B-Instruct http://127.0.0.1:30000/generate
image, file = Image.new("RGB", (448, 224), (90, 160, 30)), io.BytesIO()
image.save(file, "PNG")
processor = transformers.AutoProcessor.from_pretrained(model)
ids = processor(text=["<|vision_start|><|image_pad|><|vision_end|>Describe."], images=[image])["input_ids"][0]
body = {"input_ids": list(map(int, ids)), "image_data": [base64.b64encode(file.getvalue()).decode()]}
answer = requests.post(url, json={**body, "sampling_params": {"max_new_tokens": 4}}, timeout=30)
print(answer.status_code, len(ids), answer.json()["meta_info"]["prompt_tokens"] if answer.ok else answer.text)
