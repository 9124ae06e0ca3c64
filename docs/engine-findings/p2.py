# Pull: CHANGED after the last piece is ignored
import os, tempfile, queue, threading, hashlib
from types import SimpleNamespace as NS
from tidemark.stores.disk import Disk
from tidemark.stores import far_stream as fs
from tidemark.stores.pull import Pull
from tidemark.stores.local import LocalStore
from tidemark.stores.transfer_items import SendItem, SendOptions, Wire, Sent
from tidemark.stores.protocol import Tier, Entry
from tidemark.stores.translation import Where
from tidemark.stores.packets import Frame
src,dst=tempfile.mkdtemp(),tempfile.mkdtemp()
size=3<<20
open(src+"/f.tsfile","wb").write(b"A"*size); os.utime(src+"/f.tsfile",(1e9,1e9))
frames=[]
def send(rec,data):
    frames.append((bytes(rec),bytes(data)))
    if len(frames)==1:   # a writer comes in the middle of the read, same size
        with open(src+"/f.tsfile","r+b") as f: f.write(b"B"*size)
st=os.stat(src+"/f.tsfile"); d=Disk(src)
r=fs.Ranges(d,send,1<<20,True)
p=b"f.tsfile"
r.answer(fs.RANGE.pack(0,0,size,size,int(st.st_mtime),st.st_ino,len(p))+p)
print("records:",[(x[1],x[2],x[3]) for rec,_ in frames for x in fs.RECORD.iter_unpack(rec)])
source=NS(properties=NS(tier=Tier.PYTHON),where=Where("h",src),connection=NS(line=lambda:(0.0,0)),url="x",
  stat_many=lambda ps:[Entry(q,*d.stat(q)) for q in ps],digests=lambda rs:[d.digest(*x) for x in rs])
target=LocalStore(dst)
item=SendItem("f.tsfile","f.tsfile",size)
# entry as it was before the read
source.stat_many=lambda ps:[Entry("f.tsfile",size,int(st.st_mtime),st.st_ino) for q in ps]
pull=Pull(Wire(source,target,SendOptions(),lambda n:None),source,target,[item])
pull._prepare()
pull.schedule.next(1,size)
for rec,data in frames: pull.take(NS(number=1,bytes=0),Frame(1,memoryview(rec),memoryview(data),bytearray()))
pull.close()
while not pull._told.empty():
    t=pull._told.get()
    if isinstance(t,list):
        for o in t: print("told:",type(o).__name__, getattr(o,"verified",o))
got=open(dst+"/f.tsfile","rb").read()
print("final: A",got.count(b"A"),"B",got.count(b"B"))
