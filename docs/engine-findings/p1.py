# S44: a connection that never got the piece seals whatever lies in .part
import os, tempfile, time, hashlib, threading
from tidemark.stores.disk import Disk
from tidemark.stores import far_receive as fr, part_file
from tidemark.stores.far_stream import RECORD, PREFIX, BARE, NOTHING
def frame(asked, files, recs, data=b""):
    fs=b"".join(fr.FILE.pack(n,size,0,0,flags,len(p))+p for n,size,flags,p in files)
    return fr.WORDS.pack(asked,len(fs))+fs+b"".join(recs), memoryview(data)
def rx(root):
    out=[]; return fr.Receiver(Disk(root), out.append, {}), out
new=b"N"*1000; d=hashlib.sha256(new).digest()
root=tempfile.mkdtemp()
open(root+"/a.resource.part","wb").write(b"stale, 17 bytes!!")      # of an earlier run that was killed
B,ob=rx(root); C,oc=rx(root)
# A was asked first (slow, nothing came yet). B was asked again: COPY|SHARED; it has all of it, then is lost.
B.take(*frame(fr.PIECES,[(0,1000,fr.COPY|fr.SHARED,b"a.resource")],[RECORD.pack(0,0,1000,0,PREFIX,1000,d)],new))
print("B answered", RECORD.unpack(ob[0])[3:5])
# Push.gone(B) -> _seal(None) -> C is asked; 0 not in C.copies, so flags = SHARED
C.take(*frame(fr.SEALS,[(0,1000,fr.SHARED,b"a.resource")],[RECORD.pack(0,0,0,0,PREFIX,0,d)]))
C.finish(); B.finish()
n,o,l,trouble,kind,size,dig=RECORD.unpack(oc[0])
print("C's seal answered: trouble",trouble,"kind",kind,"digest is wanted:",dig==d, "| final holds:",open(root+"/a.resource","rb").read()[:20])
# same, part missing, an older edition under the final name
root=tempfile.mkdtemp(); open(root+"/a.resource","wb").write(b"older edition")
C,oc=rx(root)
C.take(*frame(fr.SEALS,[(0,1000,fr.SHARED,b"a.resource")],[RECORD.pack(0,0,0,0,PREFIX,0,d)])); C.finish()
print("no part: trouble",RECORD.unpack(oc[0])[3],"final:",open(root+"/a.resource","rb").read())

# S15: three connections, B and C both write .again.part
root=tempfile.mkdtemp(); B,ob=rx(root); C,oc=rx(root)
F=[(0,1000,fr.COPY|fr.SHARED,b"a.resource")]; R=[RECORD.pack(0,0,1000,0,PREFIX,1000,d)]
B.take(*frame(fr.PIECES,F,R,new))
go=threading.Event(); old=part_file._write
def slow(h,data,off):
    go.wait(3); raise OSError(28,"No space left on device")   # or: just killed / slow here
part_file._write=slow
t=threading.Thread(target=lambda:C.take(*frame(fr.PIECES,F,R,new))); t.start(); time.sleep(.3)
B.take(*frame(fr.SEALS,F,[RECORD.pack(0,0,0,0,PREFIX,0,d)])); B.finish(); go.set(); t.join()
print("B's seal: trouble",RECORD.unpack(ob[-1])[3],"| final size",os.path.getsize(root+"/a.resource"),"of 1000; C's answer trouble",RECORD.unpack(oc[0])[3])
C.finish(); print("after all:",os.path.getsize(root+"/a.resource"))

# does the schedule ask three connections for one file?
from tidemark.stores.schedule import Schedule
s=Schedule()
for n in range(6): s.add_small(n,100_000)
a=[s.next(1,100_000) for _ in range(6)]
b=[s.next(2,100_000) for _ in range(3)]
c=[s.next(3,100_000) for _ in range(3)]
print("A",[x[0].number for x in a]," B again",[x[0].number if x else None for x in b]," C again",[x[0].number if x else None for x in c])
