from common import *
n=int(sys.argv[1])
s=server()
try:
    root=Path(tempfile.mkdtemp(dir="/dev/shm")); deep="d"*100+"/"+"e"*60
    (root/deep).mkdir(parents=True)
    for i in range(n): (root/deep/f"{i:08d}.tsfile").write_bytes(b"0123456789")
    items=[SendItem(f"{deep}/{i:08d}.tsfile",f"l/{i}.tsfile",10) for i in range(n)]
    store=open_sftp(address(s,root),limits=Limits(10,20,10))
    dst=tempfile.mkdtemp(dir="/dev/shm"); t=time.time(); first=[0]
    def on(c):
        if not first[0]: first[0]=time.time()-t
    def watch():
        time.sleep(6); faulthandler.dump_traceback(all_threads=True)
    threading.Thread(target=watch,daemon=True).start()
    got=list(send(store,LocalStore(dst),items,SendOptions(retries=2,should_stop=lambda:time.time()-t>45),on))
    print("n",n,"sent",sum(isinstance(o,Sent) for o in got),"failed",sum(isinstance(o,Failed) for o in got),set(str(o.error)[:200] for o in got if isinstance(o,Failed)),"first byte told %.1f, in %.1f s (stall limit 10)"%(first[0],time.time()-t))
finally:
    s.close(); import shutil; shutil.rmtree(root); shutil.rmtree(dst)
