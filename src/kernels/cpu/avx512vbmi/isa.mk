MACHINE_avx512vbmi = x86_64
ISA_avx512vbmi = $(ISA_avx512) -mavx512vbmi
