"""How processes speak: connections, calls, transports; how trainers meet and hear of each other."""
