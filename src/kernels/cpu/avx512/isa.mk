MACHINE_avx512 = x86_64
ISA_avx512 = $(ISA_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mprefer-vector-width=512
