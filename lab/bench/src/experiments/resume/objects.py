import random, sys, time

n = int(sys.argv[1])
objects = [random.Random(i).randbytes(1000) + b"." * 2000 for i in range(n)]
sums = [hash(o[:8]) for o in objects]
order = random.Random(7).sample(range(n), n)
print("ready", flush=True)
for line in sys.stdin:
    began = time.monotonic()
    for i in order:
        if objects[i][2999] != 46:
            sys.exit("wrong")
    print("touched", int((time.monotonic() - began) * 1e6), flush=True)
    if [hash(o[:8]) for o in objects] != sums:
        sys.exit("wrong")
