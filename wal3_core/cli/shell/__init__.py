"""What every command needs: the named store, output, input, and how a command ends."""
