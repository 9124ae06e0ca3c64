from common import *
import socket, collections
from tidemark.errors import TidemarkError
def proxy(port, at):
    ls=socket.create_server(("127.0.0.1",0))
    def run():
        c,_=ls.accept(); u=socket.create_connection(("127.0.0.1",port))
        def up():
            try:
                while d:=c.recv(65536): u.sendall(d)
            except OSError: pass
            try: u.shutdown(1)
            except OSError: pass
        threading.Thread(target=up,daemon=True).start()
        n=0
        try:
            while d:=bytearray(u.recv(65536)):
                if n<=at<n+len(d): d[at-n]^=1
                n+=len(d); c.sendall(d)
        except OSError: pass
        c.close(); total[0]=n
    threading.Thread(target=run,daemon=True).start()
    return ls.getsockname()[1]
total=[0]
s=server(); seen=collections.OrderedDict()
try:
    f=s.new_folder()
    store=open_sftp(address(s,f,port=proxy(s.port,10**9)),limits=Limits(3,3,3)); store.close(); time.sleep(.3); print("bytes of an opening:",total[0])
    top=total[0]
    for at in range(1100,top,37):
        try:
            store=open_sftp(address(s,f,port=proxy(s.port,at)),limits=Limits(3,3,2)); r="opened"; store.close()
        except TidemarkError as e: r="Tidemark "+type(e).__name__
        except BaseException as e: r="BARE "+type(e).__module__+"."+type(e).__name__
        seen.setdefault(r,[]).append(at)
    for r,a in seen.items(): print(r,a)
finally: s.close()
