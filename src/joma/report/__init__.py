"""What people look at: figures drawn from tables. Drawing libraries stay in edge files."""
