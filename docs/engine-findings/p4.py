from common import *
from tidemark.stores import far_source, packets
slow=float(sys.argv[1])
old=far_source._bare
def bare(name):
    t=old(name)
    if name=="durable" and slow: t=t.replace("    folders = sorted({","    import time; time.sleep(%f)\n    folders = sorted({"%slow,1)
    return t
far_source._bare=bare
orig=packets.BulkSink.cut
def cut(self):
    try: return orig(self)
    except Exception as e: print("cut raised:",e, "whole frame",packets.HEAD.unpack_from(self.slab,self.start)); raise
packets.BulkSink.cut=cut
s=server()
try:
    store=open_sftp(address(s,s.new_folder()),limits=Limits(10,20,10))
    src=tempfile.mkdtemp(); items=many(src,6000,20)
    t=time.time(); got=list(send(LocalStore(src),store,items,SendOptions(retries=2)))
    print("sent",sum(isinstance(o,Sent) for o in got),"failed",sum(isinstance(o,Failed) for o in got),set(str(o.error) for o in got if isinstance(o,Failed)),"in %.1f s"%(time.time()-t), "connection lost in between: see above")
    store.close()
finally: s.close()
