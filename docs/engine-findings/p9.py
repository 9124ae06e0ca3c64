from common import *
from tidemark.stores import durable
n=[0]
def bad(r): n[0]+=1; raise RuntimeError("a bug, or ImportError: ctypes")
durable.seal=bad
threading.excepthook=lambda a:None
s=server()
try:
    src=s.new_folder(); items=many(src,3,1000)
    store=open_sftp(address(s,src),limits=Limits(10,20,5))
    dst=tempfile.mkdtemp(); t=time.time()
    got=list(send(store,LocalStore(dst),items,SendOptions(retries=2,should_stop=lambda: time.time()-t>15)))
    print("%.0f s, outcomes %r, rounds %d"%(time.time()-t,got,n[0]))
finally: s.close()
