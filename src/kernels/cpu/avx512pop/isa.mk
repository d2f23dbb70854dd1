MACHINE_avx512pop = x86_64
ISA_avx512pop = $(ISA_avx512) -mavx512vpopcntdq
