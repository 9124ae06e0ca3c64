from common import *
from tidemark.stores import far_source
far_source._LOAD=far_source._LOAD.replace("import sys,zlib;","import sys,zlib;sys.modules[bytes([99,116,121,112,101,115]).decode()]=None;")
s=server()
try:
    store=open_sftp(address(s,s.new_folder()),limits=Limits(10,20,10))
    src=tempfile.mkdtemp(); items=many(src,40,1000); wire=[0]
    def stop_after():
        return time.time()-t>20
    t=time.time(); got=list(send(LocalStore(src),store,items,SendOptions(retries=2,should_stop=stop_after),lambda n:wire.__setitem__(0,wire[0]+n)))
    print("after %.1f s: outcomes %d, bytes on the wire %d for 40,000 bytes of files (retries=2)"%(time.time()-t,len(got),wire[0]))
    store.close()
finally: s.close()
