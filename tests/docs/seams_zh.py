"""The Chinese of the table of seams: what we do in each function. `tests.docs.seams` writes it into the page.

``test_seams.py`` says which text is missing here, and which is of no row any more.
"""

from __future__ import annotations

import re

ROLES = {
    "stop a model whose deepstack features could be lost": "可能丢失 deepstack 特征时，使模型停止构造",
    "note in the batch which layers get deepstack features in this pass": (
        "在批次中记下这次前向有哪些层会加上 deepstack 特征"
    ),
    "let these layers do their all-reduce themselves": "让这些层自己做 all-reduce",
    "stop SGLang where a repair could not be applied": "无法修补时，使 SGLang 停止启动",
    "open the request's scope, refuse what cannot be served; the last look at the result": (
        "打开请求的作用域，拒绝无法支持的请求；对结果做最终校验"
    ),
    "the same where an encoder has made the embeddings (encoder disaggregation)": (
        "同上，用于由编码器计算嵌入的情形（编码器分离）"
    ),
    "hand the loader one placeholder per image and video in place of the ids": (
        "不把 id 交给加载函数，而是每张图片、每个视频给它一个占位符"
    ),
    "the same": "同上",
    "the same; some images of 0.5.12.post1 call it directly": "同上；0.5.12.post1 的某些镜像直接调用它",
    "keep the times of a video's frames with the frames; with `video`, let the HF processor choose them": (
        "让视频各帧的时间与帧保持在一起；启用 `video` 时由 HF 处理器选取帧"
    ),
    "leave this step out where the HF processor has another factor than 28": (
        "HF 处理器的倍数不是 28 时，跳过这一步"
    ),
    "enter the scope again, on a worker thread from 0.5.17 on; ids of preprocessed items": (
        "再次进入作用域（0.5.17 起在工作线程上）；处理预处理条目的 id"
    ),
    "re-tokenized ids are born here: return the caller's": "重新分词的 id 在这里产生：改为返回调用者的 id",
    "hand the times of a video's frames to the HF processor": "把视频各帧的时间交给 HF 处理器",
    "find the offsets of preprocessed items in the caller's ids": "在调用者的 id 中找到预处理条目的偏移",
    "artifact path (0.5.20 -) and encoder disaggregation: give it one placeholder per image": (
        "artifact 路径（0.5.20 起）与编码器分离：每张图片给它一个占位符"
    ),
    "the same with videos, for models with times in the ids; return the caller's ids": (
        "同上，用于带视频且 id 中有时间的模型；返回调用者的 id"
    ),
    "keep it from reading past ids that end in vision_start; give it a grid for each group of frames": (
        "id 以 vision_start 结尾时，使它不会越过末尾读取；每组帧给它一个网格"
    ),
    "stop a Qwen-VL model whose processor does not run through our wrappers": (
        "Qwen-VL 模型的处理器不经过本包的包装时，使其停止启动"
    ),
    "refuse placeholders without media, and ids that SGLang cut; the last look, whatever the path": (
        "拒绝没有对应媒体的占位符和被 SGLang 截断的 id；无论走哪条路径，都做最终校验"
    ),
    "remove the state of a refused request, which 0.5.10 - 0.5.13 keep for ever": (
        "清除被拒绝的请求的状态，0.5.10 - 0.5.13 会永远保留它"
    ),
    "leave a chat whose text names a placeholder a text, as it was before it became ids": (
        "聊天的文本提到占位符时，仍以文本处理，不换成 id"
    ),
    "stop HTTP workers that nothing of ours would reach": "本包无法到达 HTTP worker 工作进程时，使其停止启动",
    "hand a refusal over as a refusal, where a request waits for an encoder": (
        "请求等待编码器时，把拒绝原样作为拒绝传递"
    ),
    "drop the vision features that SGLang keeps: they are of the old weights": (
        "丢弃 SGLang 保留的视觉特征：它们来自旧权重"
    ),
    "make the hash of an image depend on its grid, so that the prefix cache tells pictures apart": (
        "使图片的哈希取决于它的网格，让前缀缓存能区分图片"
    ),
    "log-probs of the prompt: take them of the placeholders, not of what SGLang pads them with": (
        "提示词的对数概率：取占位符的，而不是 SGLang 填充值的"
    ),
    "log-probs of the prompt: return the placeholders, not 0": "提示词的对数概率：返回占位符，而不是 0",
    "stop a Qwen-VL model on a gRPC server that drops images, or that nothing of ours would reach": (
        "Qwen-VL 模型运行在会丢掉图片、或本包无法到达的 gRPC 服务器上时，停止启动"
    ),
    "read the model's configuration; stop SGLang where it lacks something": (
        "读取模型配置；缺少所需内容时停止 SGLang"
    ),
    "refuse images and placeholders that contradict each other; add M-RoPE positions": (
        "拒绝互相矛盾的图片与占位符；补上 M-RoPE 位置"
    ),
    "refuse images, which SGLang drops there, and placeholders without images": (
        "拒绝 SGLang 在那里会丢掉的图片，以及没有图片的占位符"
    ),
    "stop a Qwen-VL model on the Rust servicer, which takes requests past the Python one": (
        "Qwen-VL 模型运行在 Rust servicer 上时停止启动：请求不经过 Python servicer"
    ),
    "stop a Qwen-VL model on the Rust server, which takes requests past the processor": (
        "Rust 服务器接收的请求绕过处理器：使 Qwen-VL 模型不在其上启动"
    ),
    "give each sample of a request (`n`) its images; to 0.5.12.post1, SGLang ends without it": (
        "请求的每次采样（`n`）各有自己的图片；否则 SGLang（至 0.5.12.post1）会终止"
    ),
    "sessions: whether the model is one of ours": "会话：判断模型是否由本包处理",
    "sessions: the positions of the whole prompt, for a turn without images": (
        "会话：本轮没有图片时，整个提示词的位置"
    ),
    "sessions: the positions of the whole prompt, for a turn with images": (
        "会话：本轮有图片时，整个提示词的位置"
    ),
    "under --rl-on-policy-target, give images the positions that the processor made": (
        "使用 --rl-on-policy-target 时，给图片以处理器算出的位置"
    ),
    "the function above calls it": "由上面的函数调用",
    "name no training system to the functions above": "不向上面的函数报出任何训练系统",
    "let the HF processor choose the frames of a video": "由 HF 处理器选取视频的帧",
    "add a `logit_bias` that no placeholder survives": "加上使任何占位符都不会被采样的 `logit_bias`",
    "SGLang adds the bias to the logits, before it samples and before it takes log-probs": (
        "SGLang 在采样和计算对数概率之前，把这个偏置加到 logit 上"
    ),
    "read the config as transformers does; make the rope interleaved, or refuse it": (
        "像 transformers 那样读取配置；使 rope 交错排列，否则拒绝"
    ),
    "our subclass overrides it": "由本包的子类重写",
    "our subclass calls it": "由本包的子类调用",
    "note that a model is being built which transformers always interleaves": (
        "记下正在构造的是 transformers 总是交错排列的模型"
    ),
    "refuse sections in another layout when the model is built": "构造模型时，拒绝其他排列方式的 sections",
    "gather the cos and sin rows of the batch, once a pass": "每次前向计算取一次该批次的 cos 和 sin 行",
    "gather them for a model with a forward of its own (Intern-S2)": (
        "为自带 forward 的模型（Intern-S2）取这些行"
    ),
    "hand the rows to the kernel as its cache": "把这些行作为缓存交给内核",
}

# How a row describes the classes that hold its function.
OWNERS = {
    r"the class with (\w+)": r"含 \1 的类",
    r"every class that defines (\w+)": r"定义 \1 的每个类",
    r"every class named \.\.\.(\w+)": r"名为 ...\1 的每个类",
}


def owner(shown: str) -> str:
    """The classes of a row, in Chinese; the name of a class stays, and so does nothing."""
    for pattern, chinese in OWNERS.items():
        if found := re.fullmatch(pattern, shown):
            return found.expand(chinese)
    if shown and not shown.isidentifier():
        raise KeyError(f"tests/docs/seams_zh.py: OWNERS has no Chinese for {shown!r}")
    return shown


def role(text: str) -> str:
    """What we do in the function of a row, in Chinese."""
    if text not in ROLES:
        raise KeyError(f"tests/docs/seams_zh.py: ROLES has no Chinese for {text!r}")
    return ROLES[text]
