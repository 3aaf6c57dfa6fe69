#!/usr/bin/env python3
"""Replays a long generated trace for an hour, with faults, a second tier, a draft pool and a scraped
HTTP server, and says whether memory, files or threads grow.

    bench/soak.py build/bin/serinus --minutes 60 --json soak.json [-- replay's own options]

Every ten seconds it reads /metrics, /api/stats, /api/violations and /api/pools, as a scraper and a page would,
and then the process's resident memory, open files and threads. The first half is warm-up: the pool is touched for
the first time there. Growth is the median of the last quarter against that of the third. Exit code 1: it grew by more
than 1 %, a false alarm, a visible fault missed, or a request that was not answered.
"""

import argparse
import atexit
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

OPTIONS = ["--pool-tokens", "400000", "--host-tokens", "400000", "--draft-layers", "1", "--layers", "4",
           "--faults", "all:3000"]


def resident_mib(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) / 1024


def scrape(url):
    """Steps and violations so far; every answer is read to its end."""
    answers = {}
    for path in ("/metrics", "/api/stats", "/api/violations", "/api/pools"):
        with urllib.request.urlopen(url + path, timeout=30) as answer:
            answers[path] = answer.read().decode()
    values = lambda name: [float(v) for v in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", answers["/metrics"], re.M)]
    return {"steps": int(max(values("serinus_steps_total"))),  # every monitor counts them
            "violations": int(sum(values("serinus_violations_total")))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("serinus", help="the command")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--requests", type=int, default=100000, help="of the generated trace; more than fit the time")
    parser.add_argument("--every", type=float, default=10, help="seconds between two looks")
    parser.add_argument("--json", help="file for the samples and the result")
    args, options = parser.parse_known_args()
    options = [o for o in options if o != "--"] or OPTIONS

    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.jsonl")
        subprocess.run([args.serinus, "trace-gen", "--requests", str(args.requests), "-o", trace], check=True)
        command = [args.serinus, "replay", trace, *options, "--serve", "0", "--json",
                   "--report", os.path.join(folder, "report")]
        said = open(os.path.join(folder, "said"), "w+")
        replay = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
        atexit.register(replay.kill)
        found = None
        while not found:
            if replay.poll() is not None:
                sys.exit("the replay ended before it served: " + open(said.name).read())
            time.sleep(0.1)
            found = re.search(r"http://\S+?(?=/?\s)", open(said.name).read())
        url = found[0]

        begin, samples, unanswered = time.time(), [], 0
        while time.time() - begin < args.minutes * 60 and replay.poll() is None:
            time.sleep(args.every)
            try:
                sample = scrape(url)
            except OSError:
                unanswered += 1
                continue
            sample |= {"seconds": round(time.time() - begin, 1), "rss_mib": round(resident_mib(replay.pid), 1),
                       "files": len(os.listdir(f"/proc/{replay.pid}/fd")),
                       "threads": len(os.listdir(f"/proc/{replay.pid}/task"))}
            samples.append(sample)
            if args.json:
                with open(args.json, "w") as file:
                    json.dump({"samples": samples}, file)
        ended_early = replay.poll() is not None
        if not ended_early:
            replay.send_signal(signal.SIGINT)
        summary = json.loads(replay.communicate()[0])

    half = [s["rss_mib"] for s in samples[len(samples) // 2:]]
    third, last = half[:len(half) // 2], half[len(half) // 2:]
    growth = statistics.median(last) / statistics.median(third) - 1
    result = {
        "options": " ".join(options), "minutes": round((time.time() - begin) / 60, 1), "ended_early": ended_early,
        "rss_first_mib": samples[0]["rss_mib"],
        "rss_last_half_min_mib": min(half), "rss_last_half_median_mib": statistics.median(half),
        "rss_last_half_max_mib": max(half), "growth_last_quarter": round(growth, 5),
        "files": [min(s["files"] for s in samples), max(s["files"] for s in samples)],
        "threads": [min(s["threads"] for s in samples), max(s["threads"] for s in samples)],
        "unanswered": unanswered, "steps": summary["steps"], "requests": summary["requests"],
        "entries_verified": summary["entries_verified"], "violations": summary["violations"],
        "violations_dropped": summary["violations_dropped"], "false_alarms": summary["false_alarms"],
        "faults": {k: v for k, v in summary["faults"].items() if k != "by_class"},
    }
    if args.json:
        with open(args.json, "w") as file:
            json.dump({**result, "samples": samples}, file)
    print(json.dumps(result, indent=2))
    bad = growth > 0.01 or summary["false_alarms"] or summary["faults"]["missed"] or unanswered
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
