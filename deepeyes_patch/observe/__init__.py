"""What a process reports about itself.

``release``   which SGLang this process has imported
``record``    memory of this process that ``deepeyes-patch status`` reads
``counters``  how many requests were restored, passed through and refused
``outcomes``  what became of each repair; the line in SGLang's log
"""
