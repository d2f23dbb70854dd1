MACHINE_avx2 = x86_64
ISA_avx2 = -mavx2 -mfma -mf16c
