"""The metadata database: tables by numbered migrations, leases, one repository a room."""
