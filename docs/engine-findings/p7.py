from common import *
import psutil, signal
s=server()
try:
    store=open_sftp(address(s,s.new_folder()),limits=Limits(3,3,1.0))
    store.list_folder("")
    far=[p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] and "zlib.decompress" in " ".join(p.info["cmdline"]) and s.pid in [q.pid for q in p.parents()]]
    print("far",[p.pid for p in far]); far[0].send_signal(signal.SIGSTOP)
    t=time.time()
    def ask():
        try: print(store.list_folder(""))
        except Exception as e: print("raised after",time.time()-t,type(e).__name__,e)
    th=threading.Thread(target=ask,daemon=True); th.start(); th.join(15)
    print("still waiting after %.0f s with a stall limit of 1 s: %s"%(time.time()-t,th.is_alive()))
    far[0].send_signal(signal.SIGCONT)
finally: s.close()
