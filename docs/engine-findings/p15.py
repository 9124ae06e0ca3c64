from common import *
from tidemark.stores import packets
packets.BulkPacketizer.REKEY_BYTES=int(sys.argv[1])
s=S.start(S.FarEnd.SHELL,{"RekeyLimit":sys.argv[2]} if sys.argv[2]!="-" else None)
try:
    root=Path(tempfile.mkdtemp(dir="/dev/shm")); items=many(root,3,60<<20)
    store=open_sftp(address(s,root),limits=Limits(10,20,10)); dst=tempfile.mkdtemp(dir="/dev/shm"); t=time.time()
    got=list(send(store,LocalStore(dst),items)); print("pull",sum(isinstance(o,Sent) for o in got),"%.1f s"%(time.time()-t),[str(o.error) for o in got if isinstance(o,Failed)])
    store.close()
    back=s.new_folder(); store=open_sftp(address(s,back),limits=Limits(10,20,10)); t=time.time()
    got=list(send(LocalStore(str(root)),store,items)); print("push",sum(isinstance(o,Sent) for o in got),"%.1f s"%(time.time()-t),[str(o.error) for o in got if isinstance(o,Failed)])
    store.close()
finally:
    s.close(); import shutil; shutil.rmtree(root); shutil.rmtree(dst)
