from common import *
s=server()
try:
    src=s.new_folder(); items=many(src,1,20<<20)
    for way in ("pull","push"):
        far=src if way=="pull" else s.new_folder()
        store=open_sftp(address(s,far),limits=Limits(10,20,10)); near=tempfile.mkdtemp() if way=="pull" else str(src)
        part=Path(near if way=="pull" else far)/"l/0.tsfile.part"; done=[0]
        def watch():
            while not done[0]:
                try:
                    if part.stat().st_size>(2<<20):
                        with open(part,"r+b") as f: b=f.read(1); f.seek(0); f.write(bytes([b[0]^1])); done[0]=1
                except OSError: pass
                time.sleep(.005)
        threading.Thread(target=watch,daemon=True).start()
        L=LocalStore(near); a,b=(store,L) if way=="pull" else (L,store)
        got=list(send(a,b,items,SendOptions(bandwidth=8e6,block_bytes=1<<20)))
        final=part.with_suffix("")
        print(way,"flipped on disk:",bool(done[0]),"told",[type(o).__name__+" "+getattr(o,"verified","") for o in got],"same bytes:",final.read_bytes()==(Path(src)/"0.tsfile").read_bytes())
        store.close()
finally: s.close()
