"""The Triton kernels and their launchers, imported only when one is launched: importing Triton takes half a second."""
