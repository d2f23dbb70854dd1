"""lm-eval's local-completions asks a server for loglikelihoods of a local task, and finds the figures of `nibble eval`.
clients-lm-eval.py NIBBLE MODEL. Nothing is fetched: the task and its data are files of a temporary folder."""
import json
import math
import os
import subprocess
import sys

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
import lm_eval  # noqa: E402 (after the variables that it reads)
from lm_eval.tasks import TaskManager  # noqa: E402

from server import Server, check, finish  # noqa: E402

nibble, model = sys.argv[1:]
# a context, the right ending, and three others; no two endings begin with the same word
TASKS = [
    ("The cook puts the pan on the stove and", 0, ["heats the oil.", "reads a train.", "swims to the moon.", "grows green hair."]),
    ("She opened the umbrella because", 1, ["bread is blue.", "it was raining.", "two is a shoe.", "every cat sings."]),
    ("In the morning the farmer milks", 2, ["loud numbers.", "a blue idea.", "the cows.", "under paper."]),
    ("The boy kicked the ball into", 3, ["seven o'clock.", "grammar.", "hungry.", "the goal."]),
    ("To cut the wood the carpenter takes", 0, ["a saw.", "some soup.", "no sky.", "his yesterday."]),
    ("The pilot lands the plane on", 1, ["orange songs.", "the runway.", "slowly why.", "my sandwich and."]),
    ("At night we can see", 2, ["a loud smell.", "of and to.", "the stars.", "five of Monday."]),
    ("The teacher writes on the", 3, ["sleep.", "of water is.", "running.", "blackboard."]),
]
with open("swag.txt", "w") as file:
    for context, right, endings in TASKS:
        file.write("\n".join([context, str(right), *endings]) + "\n")
with open("swag.jsonl", "w") as file:
    for context, right, endings in TASKS:
        file.write(json.dumps({"context": context, "label": right, "endings": endings}) + "\n")
with open("nibble_swag.yaml", "w") as file:
    file.write("""task: nibble_swag
dataset_path: json
dataset_kwargs: {data_files: {validation: swag.jsonl}}
validation_split: validation
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{endings}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""")
own = json.loads(subprocess.run([nibble, "eval", model, "--hellaswag", "swag.txt", "--json"], capture_output=True, text=True,
                                check=True).stdout)
server = Server(nibble, model, "-c", "512", "--alias", "m")


def tokens(text):
    return len(server.post("/tokenize", {"prompt": text})[1]["tokens"])


found = lm_eval.simple_evaluate(
    model="local-completions", tasks=["nibble_swag"], task_manager=TaskManager(include_path=".", include_defaults=False), log_samples=True, bootstrap_iters=0,
    model_args={"model": "m", "base_url": server.address + "/v1/completions", "num_concurrent": 1, "max_retries": 1, "max_length": 512})
samples = found["samples"]["nibble_swag"]
sums = [[float(choice[0]) for choice in sample["filtered_resps"]] for sample in samples]
check("lm-eval: loglikelihoods of all endings", len(sums) == len(TASKS) and all(len(s) == 4 and max(s) < 0 for s in sums), sums)
means = [[s / (tokens(f"{context} {ending}") - tokens(context)) for s, ending in zip(row, endings, strict=True)]
         for row, (context, _, endings) in zip(sums, TASKS, strict=True)]
right = sum(row.index(max(row)) == label for row, (_, label, _) in zip(means, TASKS, strict=True))
check("lm-eval: the figure of nibble eval", math.isclose(100 * right / len(TASKS), own["hellaswag"]), (right, own))
check("lm-eval: its own accuracy", found["results"]["nibble_swag"]["acc,none"] ==
      sum(row.index(max(row)) == label for row, (_, label, _) in zip(sums, TASKS, strict=True)) / len(TASKS), found["results"])
server.end()
finish()
