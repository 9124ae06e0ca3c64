# the site's clock is 10 s behind: a change within one second is not seen, and `unsure` says sure
import os, tempfile, time
from tidemark.stores.disk import Disk
from tidemark.stores import far_stream as fs
from tidemark.stores.transfer_small import unsure
from tidemark.stores.transfer_items import SendItem
from tidemark.stores.protocol import Entry
src=tempfile.mkdtemp(); size=2<<20; p=src+"/f"
open(p,"wb").write(b"A"*size)
far_now=int(time.time())-10
os.utime(p,ns=(far_now*10**9+100,far_now*10**9+100*10**6))
d=Disk(src); st=d.stat("f"); entry=Entry("f",*st)
frames=[]; r=fs.Ranges(d,lambda a,b:frames.append((bytes(a),bytes(b))),1<<20,True)
ask=lambda off:r.answer(fs.RANGE.pack(0,off,1<<20,size,entry.mtime,entry.inode,1)+b"f")
ask(0)
open(p,"r+b").write(b"B"*size); os.utime(p,ns=(far_now*10**9+100,far_now*10**9+600*10**6))   # half a second later there
ask(1<<20)
print("unsure (near clock):",unsure(SendItem("f","f",size),entry,time.time())," records:",[x[1:5] for a,_ in frames for x in fs.RECORD.iter_unpack(a)]," bytes:",[b[:1] for _,b in frames])
