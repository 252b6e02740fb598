select count(*) from flights
select carrier, count(*), avg(dep_delay) from flights where dest = 'LAX' group by carrier order by 2 desc
select min(dep_time), max(arr_time), sum(distance), avg(air_time) from flights
select count(*), count(tailnum), count(distinct dest) from flights
select origin, month, count(*), sum(dep_delay) from flights group by origin, month order by origin, month
select carrier, flight, time_hour from flights where dep_delay > 900 order by dep_delay desc, flight
select dest, count(*) from flights where dest like 'S%' and dep_delay is null group by dest having count(*) > 20 order by 1
select distinct carrier from flights where month in (6, 7) and origin <> 'JFK' order by carrier
select count(*) from flights where arr_delay between -10 and 10 or (hour = 5 and not (minute < 30))
select tailnum, distance from flights where flight = 1545 order by month, day, time_hour limit 7 offset 3
select avg(arr_delay - dep_delay), max(distance * 2 / air_time) from flights where air_time > 0
select time_hour, count(*) from flights where time_hour >= '2013-07-04 12:00:00+00' and time_hour < '2013-07-04 18:00:00+00' group by time_hour order by time_hour
