# S44: a connection that never got the piece seals whatever lies in .part
import os, tempfile, time, hashlib, threading
from tidemark.stores.disk import Disk
from tidemark.stores import far_receive as fr, part_file
from tidemark.stores.far_stream import RECORD, PREFIX, BARE, NOTHING
def frame(asked, files, recs, data=b""):
    fs=b"".join(fr.FILE.pack(n,size,0,0,flags,len(p))+p for n,size,flags,p in files)
    return fr.WORDS.pack(asked,len(fs))+fs+b"".join(recs), memoryview(data)
def rx(root):
    pass
