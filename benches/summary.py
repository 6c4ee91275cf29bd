"""One table of what the benchmarks claim, from the files that they wrote.   summary.py target/tmp"""
import glob
import json
import os
import sys

folder = sys.argv[1]
claims = []
for path in sorted(glob.glob(os.path.join(folder, "bench-*.json"))):
    with open(path) as f:
        result = json.load(f)
    claims += [dict(claim, benchmark=result["benchmark"]) for claim in result["claims"]]
wide = {k: max((len(c[k]) for c in claims), default=0) for k in ("benchmark", "what", "measured", "limit")}
for c in claims:
    print("  ".join(c[k].ljust(wide[k]) for k in wide), "" if c["holds"] else "DOES NOT HOLD")
path = os.path.join(folder, "benchmarks.json")
with open(path, "w") as f:
    json.dump(claims, f, indent=1)
print(f"\n{sum(c['holds'] for c in claims)} of {len(claims)} hold; written to {path}")
