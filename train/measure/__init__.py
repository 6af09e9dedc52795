"""What this machine's links and devices do: collectives over message sizes, matrix products, copies, launches."""
