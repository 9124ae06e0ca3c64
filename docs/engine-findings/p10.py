# a disk that reports a lost write once, as Linux does
import os, errno, tempfile, queue
from types import SimpleNamespace as NS
from tidemark.stores import sealing, durable
from tidemark.stores.disk import Disk
from tidemark.stores.translation import Where
from tidemark.stores.transfer_items import SendItem
root=tempfile.mkdtemp(); real=os.fsync; said=[0]
def fsync(h):
    if not said[0]: said[0]=1; raise OSError(errno.EIO,"Input/output error")
    return real(h)
os.fsync=fsync
told=[]
wire=NS(sent=lambda i,d:("Sent",i.target_path),failed=lambda i,e:("Failed",str(e)))
s=sealing.Sealer(wire,Disk(root),Where("",root),told.append)
open(root+"/f.part","wb").write(b"x"*10)
s.sync(os.open(root+"/f.part",os.O_RDWR))
s.put([sealing.Whole(SendItem("f","f",10),(root+"/f").encode(),"d",True)]); s.finish()
print("fsync failed once with EIO:",bool(said[0]),"| told:",told,"| final there:",os.path.exists(root+"/f"))
