"""Small templates for one rule each, over the variables V."""
V = {"a": 1, "b": 2.5, "s": "Hello World", "n": None, "t": True, "e": "", "neg": -7, "x": [3, 1, 2], "y": [],
     "d": {"k": "v", "items": 5, "z": {"q": [10, 20]}}, "u": "\u00e4\u00df\u4e2d\U0001f600e", "words": ["b", "A", "c", "a"],
     "ms": [{"r": "u", "c": "one", "n": 2}, {"r": "a", "c": "two", "n": 1}, {"r": "u", "c": "three"}],
     "big": 1e16, "small": 1.5e-7, "html": "<a href=\"x\">&'</a>", "lines": "one\n\n  two\nthree\n"}

MICRO = """{{ a + 1 }} {{ a - 2 }} {{ 7 // 2 }} {{ neg // 2 }} {{ neg % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7 / 2 }} {{ 4 / 2 }}
{{ -a }} {{ +b }} {{ -2 ** 2 }} {{ - a | abs }} {{ 1.0 }} {{ 1e3 }} {{ 1.5e-10 }} {{ big }} {{ small }} {{ 0.1 + 0.2 }} {{ 1e22 }} {{ 123456789012345680.0 }}
{{ b // 1 }} {{ -b // 1 }} {{ b % 1 }} {{ -b % 2 }} {{ true + 1 }} {{ true }} {{ none }} {{ n }} {{ [1, 'a', none, true, 1.5, 'it\\'s', "q\\"", "both'\\""] }}
{{ {'a': 1, 'b': [1, {'c': ()}], 2: (1,), none: 'x'} }} {{ (1, 2) }} {{ () }} {{ 1, 2 }}
{{ "a\\nb\\t\\\\ \\x41 \\u00e9 \\101 \\q" }} {{ ["\\n\\x07\\u200b\\u00e9"] }}
{{ s[0] }}{{ s[-1] }}{{ s[1:4] }}{{ s[::-1] }}{{ s[::2] }}{{ s[-3:] }}{{ s[:-3] }}{{ s[20:] }}{{ s[5:2] }}{{ s[4:1:-1] }}{{ s[:3:-2] }}
{{ u[0] }}{{ u[2] }}{{ u[-1] }}{{ u[1:4] }}{{ u[::-1] }}{{ u | length }}{{ u | upper }}{{ u.upper() }}
{{ x[0] }}{{ x[-1] }}{{ x[5] }}{{ x[1:] }}{{ x[::-1] }}{{ x[-2:] }}{{ (1,2,3)[1:] }}{{ range(5)[1:3] }}{{ range(10)[::3] }}{{ range(3) }}
{{ d.k }} {{ d['k'] }} {{ d['items'] }} {{ d.z.q[1] }} {{ d.missing }} {{ d['missing'] }} {{ d.items() | list }} {{ d.keys() }} {{ d.values() | list }}
{{ d.missing.deeper }}
{{ missing }}|{{ missing ~ 'x' }}|{{ missing | default('d') }}|{{ missing is defined }}|{{ [missing] }}
{{ missing + 1 }}
{{ missing.x }}
{{ missing() }}
{{ missing[0] }}
{{ n.x }}|{{ n['x'] }}
{{ n.x.y }}
{{ 'x' if missing }}|{{ 'x' if t else 'y' }}|{{ 'a' if n else 'b' if t else 'c' }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 'a' == 1 }} {{ n == none }} {{ x == [3, 1, 2] }} {{ 1 != 2 }}
{{ 'a' < 1 }}
{{ 1 in x }} {{ 9 not in x }} {{ 'll' in s }} {{ 'k' in d }} {{ 'v' in d }} {{ 'a' in missing }} {{ not t }} {{ not 1 in x }}
{{ 1 in s }}
{{ 1 in 5 }}
{{ t and 'x' }} {{ n or 'y' }} {{ e or n or 0 }} {{ n and 1 }}
{{ 'a' ~ 1 ~ none ~ 2.0 ~ [1] }} {{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ 2 * 'x' }} {{ [1] * 2 + [3] }} {{ (1,) + (2,) }}
{{ 'a' + 1 }}
{{ 1 + none }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ s.split() }} {{ s.split('o') }} {{ s.split('o', 1) }} {{ s.rsplit('o', 1) }} {{ ' a  b '.split() }} {{ ' a  b c '.split(none, 1) }} {{ ' a  b c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a,b,'.split(',') }}
{{ s.strip('Hd') }} {{ '  x '.lstrip() }}| {{ '  x '.rstrip() }}| {{ 'xxabxx'.strip('x') }} {{ s.lower() }} {{ s.title() }} {{ "they're here".title() }} {{ 'hELLO'.capitalize() }} {{ 'aB'.swapcase() }}
{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ 'ab'.replace('', '-') }} {{ s.find('o') }} {{ s.find('o', 5) }} {{ s.rfind('o') }} {{ s.find('zz') }} {{ s.count('l') }} {{ s.index('W') }} {{ u.find('\\u4e2d') }}
{{ s.startswith('He') }} {{ s.endswith(('x', 'd')) }} {{ s.startswith('l', 2) }} {{ ','.join(['a', 'b']) }} {{ 'a\\nb\\r\\nc'.splitlines() }} {{ 'a\\nb\\n'.splitlines(true) }} {{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }}
{{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ''.isdigit() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab1'.islower() }} {{ '5'.zfill(3) }} {{ '-5'.zfill(4) }} {{ 'x'.center(5, '*') }} {{ 'x'.ljust(3) }}| {{ 'x'.rjust(3) }} {{ 'prefix_x'.removeprefix('prefix_') }} {{ 'x.py'.removesuffix('.py') }}
{{ ','.join([1]) }}
{{ s.nothing() }}
{{ x.append(4) }}
{{ d.update({'a': 1}) }}
{{ d.pop('k') }}
{{ x.append }}|{{ s.__class__ }}
{{ s.__class__.x }}
{{ d.get('k') }} {{ d.get('zz') }} {{ d.get('zz', 'dflt') }} {{ x.index(1) }} {{ x.count(1) }}
{{ x | length }} {{ s | length }} {{ d | count }} {{ missing | length }} {{ x | first }} {{ x | last }} {{ y | first }} {{ s | first }} {{ d | first }}
{{ 5 | length }}
{{ x | sort }} {{ x | sort(reverse=true) }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ x | reverse | list }} {{ s | reverse }} {{ x | sum }} {{ x | min }} {{ x | max }} {{ words | max }} {{ ['a', 'A', 'b'] | unique | list }} {{ y | max }}
{{ [1, 'a'] | sort }}
{{ ms | map(attribute='c') | join(', ') }} {{ ms | map(attribute='n', default=0) | list }} {{ words | map('upper') | list }} {{ words | map('replace', 'a', 'Z') | list }} {{ ms | selectattr('r', 'equalto', 'u') | map(attribute='c') | list }} {{ ms | rejectattr('n') | list }} {{ ms | selectattr('n', 'defined') | list | length }} {{ [1, 2, 3, 4] | select('odd') | list }} {{ [0, 1, '', 'x'] | select | list }} {{ [1, 2, 3] | reject('ge', 2) | list }} {{ ms | sort(attribute='c') | map(attribute='c') | list }} {{ ms | sum(attribute='zz', start=0) }}
{{ x | join }} {{ x | join('-') }} {{ ms | join(',', attribute='r') }} {{ s | join('.') }} {{ s | upper }} {{ s | lower }} {{ s | title }} {{ 'aBC dEF' | capitalize }} {{ 'foo-bar (baz)' | title }} {{ '  x ' | trim }}| {{ 'xxaxx' | trim('x') }} {{ s | replace('o', '0') }} {{ 5 | string + '6' }} {{ none | string }}
{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ '3.7' | int }} {{ 3.9 | int }} {{ -3.9 | int }} {{ 'ff' | int(0, 16) }} {{ '0x1A' | int(0, 16) }} {{ ' 12 ' | int }} {{ none | int(5) }} {{ '1.5' | float }} {{ 'x' | float }} {{ 3 | float }} {{ neg | abs }} {{ 2.567 | round }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.567 | round(2) }} {{ 2.111 | round(1, 'ceil') }} {{ 2.19 | round(1, 'floor') }} {{ 5 | round }} {{ 1234 | round(-2) }}
{{ d | tojson }} {{ x | tojson(indent=2) }} {{ {} | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ u | tojson }} {{ u | tojson(ensure_ascii=true) }} {{ html | tojson }} {{ d | tojson(sort_keys=true) }} {{ d | tojson(separators=(',', ':')) }} {{ none | tojson }} {{ true | tojson }} {{ 1.0 | tojson }} {{ (1, 2) | tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ "\\x07\\x7f/" | tojson }} {{ d | tojson(indent='--') }} {{ x | tojson(indent=0) }}
{{ missing | tojson }}
{{ x | map('upper') | tojson }}
{{ d | dictsort }} {{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(by='value') }} {{ {'b': 1, 'a': 2} | dictsort(reverse=true) }} {{ d | items | list }} {{ missing | items | list }}
{{ lines | indent }}|{{ lines | indent(2, true) }}|{{ lines | indent(2, blank=true) }}|{{ lines | indent('> ', first=true) }}|
{{ html | escape }} {{ html | e }} {{ html | safe }} {{ missing | default }} {{ n | default('x') }} {{ n | default('x', true) }} {{ n | d('y', boolean=true) }} {{ x | list }} {{ s | list }} {{ d | list }}
{{ '%s is %d and %.2f' | format('a', 3, 2.5) }} {{ '%s' % 'x' }} {{ '%05d|%-5s|%5s|%+d|%x|%%' % (42, 'ab', 'cd', 3, 255) }} {{ '%(k)s' % d }} {{ '%r' % ('a',) }} {{ '%.3s' % ('abcdef',) }} {{ '%e' % 12345.678 }} {{ '%g' % 0.0001 }}
{{ '%d' % 'x' }}
{{ '%s %s' % ('x',) }}
{{ '%s' % (1, 2) }}
{{ '{} {}'.format(1, 'b') }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x:>5}|{y:<5}|{z:^5}'.format(x='a', y='b', z='c') }} {{ '{:05d} {:.2f} {:,} {:x} {:%}'.format(42, 3.14159, 1234567, 255, 0.25) }} {{ '{{}}'.format() }} {{ '{!r}'.format('a') }} {{ '{:*^9}'.format('mid') }}
{{ '{}'.format() }}
{{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3] | batch(2, 0) | list }} {{ 'long text here to cut' | truncate(10) }} {{ 'long text here to cut' | truncate(10, true) }} {{ 'short' | truncate(10) }} {{ 'x' | center(5) }}|
{{ a is defined }} {{ a is number }} {{ t is number }} {{ t is integer }} {{ a is integer }} {{ b is float }} {{ s is string }} {{ x is sequence }} {{ s is sequence }} {{ d is mapping }} {{ d is iterable }} {{ a is iterable }} {{ n is none }} {{ t is boolean }} {{ t is true }} {{ a is true }} {{ n is false }} {{ missing is undefined }} {{ missing is iterable }} {{ missing is sequence }} {{ range is callable }} {{ s is callable }}
{{ a is odd }} {{ a is even }} {{ 6 is divisibleby 3 }} {{ 6 is divisibleby(4) }} {{ a is eq 1 }} {{ a is equalto(2) }} {{ a is ne 2 }} {{ a is lt 2 }} {{ a is in x }} {{ a is not in x }} {{ 'ab' is lower }} {{ 'AB' is upper }} {{ a is sameas 1 }} {{ n is not none }} {{ 'upper' is filter }} {{ 'odd' is test }} {{ 2 is gt(1) and 2 is ge(2) }} {{ d.items is defined }}
{{ x | nosuchfilter }}
{{ x is nosuchtest }}
{% for i in x %}{{ i }}{{ ',' if not loop.last }}{% endfor %} {% for i in y %}x{% else %}empty{% endfor %} {% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {% for k in d %}{{ k }}{% endfor %} {% for c in 'abc' %}{{ loop.index }}{{ c }}{% endfor %} {% for i in missing %}x{% else %}none{% endfor %}
{% for i in x %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}
{% for i in x if i > 1 %}{{ i }}{{ loop.index }}/{{ loop.length }} {% endfor %}{% for i in x if i > 5 %}x{% else %}else{% endfor %} {% for i in x if i != 1 %}{{ i }}{% endfor %}
{% for i in [1, 2, 3, 4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %} {% for i in [1] %}{% break %}{% else %}never{% endfor %}
{% for i in [[1, [2, 3]], [4, [5, 6]]] %}{% for a, (b, c) in [i] %}{{ a }}{{ b }}{{ c }}{{ loop.depth }}{% endfor %}{% endfor %}
{% for a, b in [[1, 2, 3]] %}{{ a }}{% endfor %}
{% for i in 5 %}{% endfor %}
{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{% endfor %}
{% set q = 1 %}{% for i in x %}{% set q = q + i %}{{ q }}{% endfor %}{{ q }} {% set ns = namespace(c=0) %}{% for i in x %}{% set ns.c = ns.c + i %}{% endfor %}{{ ns.c }} {% if t %}{% set w = 5 %}{% endif %}{{ w }} {% set p, q = 1, 2 %}{{ p }}{{ q }} {% set (p, q) = [3, 4] %}{{ p }}{{ q }}
{% set d.k = 1 %}
{% set z %}block {{ a }}{% endset %}{{ z }} {% set z | upper %}block{% endset %}{{ z }} {% set z | replace('b', 'c') | upper %}b{% endset %}{{ z }} {{ z | length }}
{% macro m(a, b=2, c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=9) }}{{ m(b=5, a=4) }}{{ m() }} {{ m.name }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, z=4) }}
{% macro m(x) %}<{{ caller(x) }}>{% endmacro %}{% call(v) m(5) %}got {{ v }}{% endcall %} {% macro k() %}{{ caller() }}{{ caller() }}{% endmacro %}{% call k() %}z{{ a }}{% endcall %}
{% macro m() %}{{ later }}{% endmacro %}{% set later = 'L' %}{{ m() }} {% macro fact(n) %}{{ n * (fact(n - 1) | int) if n > 1 else 1 }}{% endmacro %}{{ fact(5) }}
{% filter upper %}abc {{ s }}{% endfilter %} {% filter replace('a', 'b') | trim %} aaa {% endfilter %}| {% with p = 1, q = a %}{{ p }}{{ q }}{% endwith %}{{ p }} {% generation %}gen{{ a }}{% endgeneration %} {% raw %}{{ raw }} {% x %}{% endraw %} {# comment {{ x }} #}end
{% if a == 1 %}one{% elif a == 2 %}two{% else %}other{% endif %} {% if not t %}x{% elif n %}y{% else %}z{% endif %}
{{ namespace(a=1) }} {{ namespace({'b': 2}, c=3).b }} {{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }} {{ range(3) | list }} {{ range(5, 1, -2) | list }} {{ range(1, 4) | list }} {% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }} {% set j = joiner('|') %}{% for i in x %}{{ j() }}{{ i }}{% endfor %}
{{ range(200000) }}
{{ raise_exception('stop: ' ~ s) }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %B %b %A %a %j %y %p %I %-d %% %e') }} {{ strftime_now('%d %b %Y') }}
{{ 'a' 'b' "c" }} {{ 1_000 }} {{ 0x1f }} {{ 0b101 }} {{ x.0 }} {{ d.z.q.1 }} {{ (a) }} {{ [1, 2,] }} {{ {'a': 1,} }} {{ [] }} {{ {} }} {{ (1,) }}
{{ foo(*[1]) }}
{{ dict(**{'a': 1}) }} {{ '{}{}'.format(*[1, 2]) }}
{{ }}
{{ a
{% if a %}
{% endif %}
{% unknown %}
{% for %}{% endfor %}
{{ a b }}
{{ 'abc }}
{{ (1 }}
{{ 1 = 2 }}
{% set 1 = 2 %}
{% set true = 2 %}
{% break %}
{% include 'x' %}
{{ [1, 2] is iterable and 'x' is string or false }} {{ not a is none }} {{ (not a) is none }} {{ 'x' is in ['x'] }} {{ a if a is defined else 'no' }}
{{ [a, b] | map('string') | join(',') | upper | length }} {{ (s | lower).split(' ')[0] }} {{ s.split(' ')[-1].lower() | replace('w', 'v') }} {{ s.upper().lower().title() }} {{ [s][0][1:][::-1] }}
{{ s is string and (s | length > 3) }} {{ x | length == 3 }} {{ x | length - 1 }} {{ 2 * x | length }} {{ -1 | abs }} {{ a + x | first }} {{ 'a' ~ 'b' | upper }} {{ 1 + 2 ~ 3 }} {{ 2 * 3 ~ 4 }}
{{ {'a': {'b': [1, 2, {'c': 'deep'}]}}.a.b[2].c }} {{ [[1, 2], [3, 4]][1][0] }} {{ ms[0]['c'][0] }} {{ ms[-1].c }} {{ ms[0].r == 'u' }}
{{ 'a' | safe + '<b>' }} {{ '<b>' + 'a' | safe }} {{ ('<' | e) + '<' }} {{ html | e | e }} {{ html | forceescape }} {{ html | e | forceescape }} {{ 'a' | safe ~ '<' }} {{ ('a<' | safe) * 2 + '<' }} {{ ('%s' | safe) % '<' }} {{ ('%s%s' | safe) % ('<', '<' | safe) }} {{ '%s' | safe | format('<') }} {{ ('{}' | safe).format('<') }} {{ (',' | safe).join(['<', 1]) }} {{ ['<', 'b' | safe] | join('<') }}
{{ ('a b' | safe).split()[0] + '<' }} {{ ('abc' | safe)[1:] + '<' }} {{ ('abc' | safe)[0] + '<' }} {{ 'x' | safe is escaped }} {{ 'x' is escaped }} {{ ('x' | upper) is escaped }} {{ ('x' | safe).replace('x', '<') }} {{ 'x' | safe | replace('x', '<') }} {{ ['a' | safe] }} {{ ('x' | safe).center(9, 'y') + '<' }} {{ 'long text <b>' | safe | truncate(8, true, '<', 0) }} {{ ('a' | safe).partition('a')[1] + '<' }} {{ ('x\\ny' | safe) | indent + '<' }}
{{ 'ab' | safe | reverse + '<' }} {{ 'ab' | safe | title + '<' }} {{ ('ab' | safe).title() + '<' }} {{ 'ab' | safe | capitalize + '<' }} {{ 'ab' | safe | trim + '<' }} {{ ('5' | safe).zfill(3) + '<' }} {{ ('ab' | safe).removeprefix('a') + '<' }} {{ 'ab' | safe | string + '<' }} {{ 'ab' | safe | upper + '<' }} {% set q %}{{ 'a' | safe }}{% endset %}{{ q + '<' }}
{{ s | wordcount }} {{ u | wordcount }} {{ 'a-b_c d,e' | wordcount }} {{ '' | wordcount }} {{ 5 | wordcount }} {{ lines | wordcount }}
{{ ms | groupby('r') }} {{ ms | groupby('n', default=0) | map('first') | list }} {{ words | groupby(0) }} {{ words | groupby(0, case_sensitive=true) }} {{ [] | groupby('x') }} {{ (ms | groupby('r'))[0] is sequence }}
{% for g in ms | groupby('r') %}{{ g.grouper }}{{ g.list | length }}{{ g[0] }};{% endfor %}{% for k, l in ms | groupby(attribute='r') %}{{ k }}{{ l | map(attribute='c') | join }};{% endfor %}
{{ ms | groupby('n') }}
{{ [1, 2, 3, 4, 5] | slice(2) | list }} {{ [1, 2, 3, 4, 5] | slice(3, 'x') | list }} {{ [] | slice(2) | list }} {{ 'abc' | slice(2) | list }}
{{ [1] | slice(0) | list }}
{{ 1 | filesizeformat }} {{ 0 | filesizeformat }} {{ 999 | filesizeformat }} {{ 1000 | filesizeformat }} {{ 123456789 | filesizeformat }} {{ 123456789 | filesizeformat(true) }} {{ 1024 | filesizeformat(binary=true) }} {{ 1e30 | filesizeformat }} {{ '2048' | filesizeformat(true) }} {{ 1023.9 | filesizeformat(true) }}
{{ 'a b/c?\\u00e4&=~-_.' | urlencode }} {{ {'a b': 'c/d', 'e': 1} | urlencode }} {{ [('x', 'y z')] | urlencode }} {{ 5 | urlencode }}
{{ {'a': 1, 'b': none, 'c': '<"'} | xmlattr }}| {{ {'a': 1} | xmlattr(false) }}| {{ {} | xmlattr }}|
{{ {'a b': 1} | xmlattr }}"""

WHITESPACE = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "a\n  {% if true %}  \n b {%- if true %} c {% endif -%} \n d{% endif %}\n\n",
    "  {{ 1 }}  \n  {# c #}  \n x", "x {%+ if true %} y {%+ endif %} z", "\n\n{%- set a = 1 -%}\n\n{{- a -}}\n\n", "{{ 1 }}\n", "{{ 1 }}\n\n",
    "a\r\nb\rc{% if 1 %}\r\nd{% endif %}", "   {% raw %}\n {{ x }}  {% endraw %}\n y", "{%- raw -%} \n a {%- endraw -%} \n b",
    " \t{%- for i in [1,2] %}\n  {{ i }}\n {%- endfor %}\nend", "{#- a -#}\n x {#+ b +#}\n y", "x{% if true +%}\ny{% endif %}", "{% if true %}x{% endif %}   \n  {% if true %}\ty{% endif %}",
    "{{ 'a' }}{% if true %}\n\n{% endif %}b", "    {{- 'x' }}    {{ 'y' -}}    z", "\u00a0{%- if 1 %}x{% endif -%}\u2003y", "a {#\n multi\n line #}\nb", "{{ '{%' }}{{ '%}' }}{{ '}}' }}", "{{'{{'}}", "{ {{ 1 }} } {% raw %}{{% endraw %}",
    "{% set x = {'a': {'b': 1}} %}{{x['a']}}{{ {'a': {'b': 1}}}}", "", "\n", "plain", "{{ 1 }}{# unclosed", "{% raw %}x", "a{% if true %}b", "{% endif %}", "{{ 1 }}}", "%} }} #}",
]

SCOPES = [
    "{% for i in x %}{% if loop.first %}{% set f = i %}{% endif %}{{ f }}{% endfor %}{{ f }}",
    "{% set f = 0 %}{% for i in x %}{{ f }}{% set f = i %}{{ f }}{% endfor %}{{ f }}",
    "{% set ns = namespace(found=false) %}{% for m in ms %}{% if m.r == 'a' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}",
    "{% for i in x %}{% for j in x %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% macro f() %}{% set z = 5 %}{{ z }}{% endmacro %}{{ f() }}{{ z }}",
    "{% set z = 1 %}{% macro f(z) %}{{ z }}{% endmacro %}{{ f(2) }}{{ z }}",
    "{% set z = 1 %}{% set w %}{% set z = 2 %}{{ z }}{% endset %}{{ w }}{{ z }}",
    "{% set z = 1 %}{% with z = 3 %}{{ z }}{% set z = 4 %}{{ z }}{% endwith %}{{ z }}",
    "{% set z = 1 %}{% filter upper %}{% set z = 2 %}{{ z }}{% endfilter %}{{ z }}",
    "{% set z = 1 %}{% generation %}{% set z = 2 %}{{ z }}{% endgeneration %}{{ z }}",
    "{% set messages = ms[1:] %}{{ messages | length }}{% for m in messages %}{{ m.c }}{% endfor %}",
    "{% macro outer() %}{% macro inner() %}in{{ a }}{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}",
    "{% set g = x | map('string') %}{{ g | join }}|{{ g | join }}",
    "{% set ns = namespace(stop=false) %}{% for i in x if not ns.stop %}{{ i }}{% set ns.stop = true %}{% endfor %}",
    "{% for i in x %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}",
    "{% if true %}{% set v = 1 %}{% else %}{% set v = 2 %}{% endif %}{{ v }}",
    "{{ loop }}|{% for i in [1] %}{{ loop is defined }}{% endfor %}{{ loop is defined }}",
    "{% set range = 5 %}{{ range }}", "{% set ns = namespace() %}{% set ns.a = [] %}{% for i in x %}{% set ns.a = ns.a + [i] %}{% endfor %}{{ ns.a }}",
    "{% set ns = namespace(_x=1) %}", "{% set ns = namespace() %}{% set ns._x = 1 %}{{ 1 }}",
]
