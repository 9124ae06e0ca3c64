"""One SSH connection: logged in strictly, every wait limited, few copies of the bytes.

Enter by `connection.SshConnection`; a command or subsystem at the far end is a `Pipe` of it.

    dial        the TCP connection, which may be on its way while modules load
    lean_paramiko  paramiko, loaded in two thirds of the time
    expired_logins a password or an account that is over, told by what its server says
    sink        bytes of one channel on their way in
    packets     paramiko's packet layer with few copies; in C where that can be built
    transport   paramiko's transport, two round trips shorter, and the bytes on their way out
    login       `connect`: host key, public key, ciphers, a time limit on each step
    connection  channels and pipes; made again when lost

Imports `errors` and `native`. paramiko is imported here and in what stands on it, nowhere else. The host key must be
the one of the settings; nothing is ever added by itself. The fast packet layer is used for the versions of paramiko
named in KNOWN alone; with any other version paramiko's own layer works, slower. Only `stores` and `transfer` may
import this folder.
"""
