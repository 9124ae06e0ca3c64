from common import *
from tidemark.stores import line as line_mod, streaming, carrier
from tidemark.stores.ssh import SshConnection
# pretend a 50 ms line wherever the kernel tells one
real=SshConnection.line
SshConnection.line=lambda self: ((0.05,real(self)[1]) if real(self)[0] else (0.0,0))
seen=[]
init=line_mod.Line.__init__
def patched(self,*a,**k):
    init(self,*a,**k); seen.append((self.round_trip,self.long))
line_mod.Line.__init__=patched
cut=[False]
s=server()
try:
    src=s.new_folder(); items=many(src,4,8<<20)
    store=open_sftp(address(s,src),limits=Limits(10,20,5))
    dst=tempfile.mkdtemp()
    def on(n):
        if not cut[0]: cut[0]=True; s.drop_connections()
    got=list(send(store,LocalStore(dst),items,SendOptions(block_bytes=1<<20,bandwidth=20e6),on))
    print("sent",sum(isinstance(o,Sent) for o in got),"rounds (round trip, long):",seen)
    store.close()
finally: s.close()
