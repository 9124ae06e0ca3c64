from tidemark.stores.schedule import Schedule
s=Schedule()
for n in range(6): s.add_small(n,100_000)
for c in (1,4):
    for _ in range(3): s.next(c,100_000)
b=[s.next(2,100_000)[0].number for _ in range(2)]; c=s.next(3,100_000)
print("asked: A",[x.spans[0].number for x in s._asked[1]],"D",[x.spans[0].number for x in s._asked[4]],"B again",b,"C again",c[0].number if c else None)
