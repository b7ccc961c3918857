// Names that other people's headers define as macros: a header of ours must not use one of them as a name, nor write
// std::numeric_limits<T>::max() without parentheses. Included after the standard headers, which do use some of them.
#pragma once

// <windows.h>
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define small char
#define near
#define far
#define interface struct
#define IN
#define OUT
#define OPTIONAL
#define CONST const
#define VOID void
#define TRUE 1
#define FALSE 0
#define ERROR 0
#define STRICT 1

// <complex.h>, <sys/sysmacros.h>, <math.h>, and what gcc's GNU mode predefines
#undef I
#undef major
#undef minor
#undef linux
#undef unix
#define I (__extension__ 1.0iF)
#define major(device) gnu_dev_major(device)
#define minor(device) gnu_dev_minor(device)
#define DOMAIN 1
#define OVERFLOW 3
#define UNDERFLOW 4
#define linux 1
#define unix 1

// <X11/Xlib.h>
#define None 0L
#define Bool int
#define Status int
#define Success 0
#define Always 2

// <ctype.h> of some systems, <termios.h>, <Arduino.h>
#define _U 01
#define _L 02
#define _N 04
#define _B 0200
#define PI 3.1415926535897932384626433832795
#define B0 0
#define B1 1
#define F(text) text
