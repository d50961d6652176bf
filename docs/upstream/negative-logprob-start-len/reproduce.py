import sys, requests

body = {"text": "Hello", "return_logprob": True, "logprob_start_len": -2}
answer = requests.post(sys.argv[1], json=body, timeout=30)  # http://127.0.0.1:30000/generate
print(answer.status_code, answer.text)
