MACHINE_avxvnni = x86_64
ISA_avxvnni = $(ISA_avx2) -mavxvnni
