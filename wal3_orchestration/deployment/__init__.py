"""What a deployment of the code location consists of: files to start from, and the program that writes them."""
