"""anvil: PyTorch models -> MLIR -> native code for x86-64, AArch64 and RISC-V CPUs."""
