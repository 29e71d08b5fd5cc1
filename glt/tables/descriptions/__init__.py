"""What tables a graph is made of, and other formats that say so."""
