from common import *
from tidemark.errors import PermissionDeniedError
s=server()
try:
    store=open_sftp(address(s,s.new_folder()),limits=Limits(5,8,1.5))
    src=tempfile.mkdtemp(); items=many(src,1,3<<20); os.utime(src+"/0.tsfile")
    L=LocalStore(src)
    def no(rs):
        if rs: raise PermissionDeniedError("0.tsfile: Permission denied")
        return []
    L.digests=no
    t=time.time(); stop=lambda: time.time()-t>30
    import contextlib
    def watchdog():
        time.sleep(25); print("25 s and nothing was told (stall limit is 1.5 s)"); faulthandler.dump_traceback(all_threads=False); sys.stdout.flush(); s.close(); os._exit(1)
    threading.Thread(target=watchdog,daemon=True).start()
    for o in send(L,store,items,SendOptions(retries=1,block_bytes=1<<20)): print("%.1f s"%(time.time()-t),o)
finally: s.close()
