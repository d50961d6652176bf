"""A rollout of a visual agent and a train step, as a training recipe writes them, on a real server.

From the bottom up: ``environment`` (pictures, a question, one tool), ``agent`` (turns on a server, exact
ids), ``trainer`` (log-probs and a policy-gradient step with ``transformers``), ``loop`` (rollout, step,
update of the server's weights, again) and ``table`` (what came of it). The first three are there to be
copied.
"""
