# two writers on one .part: the older one names the newer one's half file
import tempfile, hashlib, os
from p1h import *
from tidemark.stores.block_journal import Identity
root=tempfile.mkdtemp()
def rxl(root,size,mtime):
    out=[]; res={}; fr.begin(Disk(root),[["f",size,mtime,7,True]],res); return fr.Receiver(Disk(root),out.append,res),out
old=b"O"*600_000; d=hashlib.sha256(old).digest()
def fl(size,mtime): return fr.FILE.pack(0,size,mtime,7,fr.LARGE,1)+b"f"
def fra(asked,f,recs,data=b""): return fr.WORDS.pack(asked,len(f))+f+b"".join(recs), memoryview(data)
A,oa=rxl(root,600_000,100)
A.take(*fra(fr.PIECES,fl(600_000,100),[RECORD.pack(0,0,600_000,0,PREFIX,600_000,d)],old))
# its seal waits behind a slow disk; the line is cut; the source changes; the next round begins it anew
B,ob=rxl(root,600_000,200)
new=b"N"*250_000
B.take(*fra(fr.PIECES,fl(600_000,200),[RECORD.pack(0,0,250_000,0,PREFIX,250_000,hashlib.sha256(new).digest())],new))
A.take(*fra(fr.SEALS,fl(600_000,100),[RECORD.pack(0,0,0,0,PREFIX,0,d)])); A.finish()
print("A's seal: trouble",RECORD.unpack(oa[-1])[3],"| final:",os.path.getsize(root+"/f"),"bytes of",open(root+"/f","rb").read()[:3]); B.finish()
