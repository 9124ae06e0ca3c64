"""Where bytes live: one protocol, local and SFTP, durable publish, the transfer engine, the layout of a receiver."""
