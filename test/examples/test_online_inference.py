"""The example of online inference trains a model, serves it, and asks itself."""

import re


def test_the_model_answers_requests(run):
    told = run("examples/online_inference.py", "demo").stdout
    assert "200 requests, 32 at a time: p50 " in told and "201 requests to the sampling process" in told, told
    (accuracy,) = re.findall(r"accuracy (0\.\d+)", told)
    assert float(accuracy) > 0.6, "chance is 0.25"
    assert len(re.findall(r'together: {"classes": \[(?:\d, ){7}\d\]}', told)) == 1
    assert "a node that is not there: (400, {'error': 'nodes[0] = 800 is outside [0, 800)" in told
