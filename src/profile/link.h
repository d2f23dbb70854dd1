/* link.h - the link between host memory and the first GPU. */
#ifndef NIB_PROFILE_LINK_H
#define NIB_PROFILE_LINK_H

/* Bytes a second from page-locked memory to the GPU: the best of a few copies, some milliseconds. 0: there is
 * no GPU, or it cannot. */
double link_rate(void);

#endif
