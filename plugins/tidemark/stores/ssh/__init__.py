"""One SSH connection: strict login, a time limit on every wait, few copies of the bytes.

Others call `connection.SshConnection`. A command or subsystem at the far end is a `Pipe` of it.

    dial           open the TCP connection while modules are still being loaded, or through a command
    client_config  what `~/.ssh/config` says of a host, where the settings name that file
    lean_paramiko  import paramiko in two thirds of the time
    sink           incoming bytes of one channel, cut into frames
    packets        paramiko's packet layer with few copies; in C where that can be built
    transport      paramiko's transport, two round trips shorter; outgoing bytes of a channel
    login          `connect_and_login`: host key, public key, ciphers, time limits; the text of an expired password
    connection     channels and pipes; reconnects after a loss

Imports `errors`, `native` and `stores.agent`. paramiko is imported here and by users of this folder only. The host key
must be that of the settings; no key is added automatically. The fast packet layer serves the paramiko versions in
`packets.KNOWN`; any other version uses its own slower layer. Only `stores` and `transfer` may import this folder.
"""
